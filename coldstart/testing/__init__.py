"""What authors of plugins test with: contract suites, a fleet in one process, faults, and virtual time.

A suite is a class; a test file is a subclass that says how to open the thing, run by pytest with
anyio's plugin in auto mode (``pip install 'coldstart-weights[testing]'``).

===================  ==========================================================  ==================================
you have made        subclass                                                    in
===================  ==========================================================  ==================================
a transport          ``TransportContract``; ``PullContract`` without a source    ``transport_contract``
one that grows       ``GrowingContract``, which includes the former              ``growing_contract``
one that connects    ``ConnectingContract``, which includes the former           ``connecting_contract``
one that uses keys   ``KeyedContract`` or ``AuthenticatedContract``              ``keyed_contract``
a skeleton builder   ``SkeletonContract``                                        ``skeleton_contract``
a digester           ``DigesterContract``                                        ``digester_contract``
a bus                ``BusContract``                                             ``bus_contract``
===================  ==========================================================  ==================================

What the suites are made of serves a plugin's other tests as well:

- ``memories``: ``BytesMemory``, a worker's memory made of bytearrays, and ``layout_of`` for its layout.
- ``transfers``: grants, landings, ``payload`` to compare two memories, ``resources`` to find what is left open.
- ``late_writes``: the transports' promise to be quiet once a cancelled pull has returned; ``Gated`` memory
  holds a writer in the act, ``Pulling`` cancels by anyio or by asyncio.
- ``keyed_contract.keys_file``: the keys of a fleet, for workers in processes of their own.
- ``eavesdropping``: somebody on the path of a connection, who hears, cuts or changes it.
- ``checkpoints``: the reader and the placement, for builders.

To see a whole cold start go wrong, ``harness.fleet`` runs real state machines, runners and mail over fakes of
everything else. Put a fault around a worker's transport (``transports``: ``Delayed``, ``Stalling``, ``Breaking``,
``Short``, ``Corrupting``, ``Lying``, ``Repeating``, ``WritingLate``, ``Deaf``, ``LeavingBehind``, ``Dialling``,
``Unoffering``; they stack), on its bus (``harness.TroubledBus``) or on its storage (``harness.FakeStorage``), and
let an hour pass in no time with ``virtual_time.VIRTUAL_TIME`` as the fixture ``anyio_backend``. The contract suites
run in real time, because they use threads, sockets and processes.

``simulator`` plays whole fleets of the real state machines under seeded faults (``coldstart simulate``). It
needs neither pytest nor hypothesis, and importing this package imports nothing.

For asserts of a suite that tell values, a ``conftest.py`` registers its module with
``pytest.register_assert_rewrite``. A worked example is ``examples/coldstart-cma``.
"""
