"""For tests of coldstart and of what is built on it: contract suites, fakes, virtual time, and the simulator.

Nothing is imported here, as the contract suites need pytest and nothing else does. An author of a
bus, a transport or a skeleton subclasses its ``*_contract``; ``simulator`` plays whole fleets.
"""
