"""What ``coldstart doctor`` looks at: one module per part of the world, one function per check.

``check.py`` says what a check is and makes sure that none of them hangs or breaks the others.
"""
