"""What a link gives: how fast bytes came from each host, how that is measured, and how it is remembered.

The design, and who may know what:

``rates.py`` (pure) says what a rate is, which of two counts, in what order transports are asked for,
and when a transfer falls short. ``meter.py`` measures one pull. ``memory.py`` is what one worker knows of the hosts
around it; ``files.py`` keeps that for the next process. ``joining.py`` meters each pull and tells memory,
``claiming.py`` asks memory what to tell a source, ``recorder.py`` and ``telemetry`` say what came of it.
``mounts.py`` tells one storage from another: its rate is kept in the same way, for ``coldstart.estimate``.
A transport knows nothing of all this, and a source measures nothing.

A probe of its own would cost a source a slot, which in a rollout is what everybody waits for, and bytes that are
thrown away. So the probe is the head of the first transfer between two hosts: its bytes go where they belong,
and only their digests wait, until the link was seen at its best (``meter.py`` has the bounds). Where a path's rate
is known, nothing waits. ``coldstart doctor --links`` measures every transport to a peer into scratch memory,
when an operator asks.
"""
