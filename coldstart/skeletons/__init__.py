"""Skeleton builders: modules with every tensor in place and no weights in them.

``tensors.py`` builds from a checkpoint's header alone, ``module.py`` from any ``nn.Module``
factory, ``pipeline.py`` from several, each on its ranks; builders for model libraries are plugins on
top of ``module.py``. ``classify.py`` puts everything a module holds into a class, and ``walk.py`` finds
what is not registered; ``extra.py`` carries state outside tensors. ``meta.py`` keeps parameters without
memory while a factory runs, ``unread.py`` keeps constructors from reading weights, ``stored.py`` finds
carried tensors in a checkpoint, and ``adoption.py`` moves them into the arena.
"""
