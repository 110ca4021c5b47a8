"""What authors of plugins test with: contract suites, a fleet in one process, faults, and virtual time.

A suite is a class; a test file is a subclass that says how to open the thing, run by pytest with
anyio's plugin in auto mode (``pip install 'coldstart-weights[testing]'``).

===================  ==========================================================  ===========================
``simulator`` plays whole fleets of the real state machines under seeded faults; it needs neither pytest nor
hypothesis, and neither does anything that is imported here: nothing is.
"""
