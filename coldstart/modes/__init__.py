"""The source's side, one page for each thing it has to do with: adverts, weights, grants.

``states`` has what a source is, ``moves`` what several pages do; which event is handled in which mode is in
``coldstart.source``, whose pages these are.
"""
