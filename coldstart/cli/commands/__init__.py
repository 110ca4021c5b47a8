"""The words of every command: its options, their help and defaults, one module for each group of commands.

A module of a command is imported when the command runs, so that help is quick; ``main.py`` puts the commands together.
"""
