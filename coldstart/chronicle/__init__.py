"""What a fleet remembers of its cold starts: lines in the journal, written by many, read as one story.

``lines`` is the schema, ``noting`` turns the steps of a machine into lines, ``starts`` is what a reader sees,
``reading`` puts it together again. All of it is pure; ``coldstart.journal`` writes, the command line reads.
"""
