"""Skeleton builders: modules with every tensor in place and no weights in them.

``tensors.py`` builds from a checkpoint's header alone, ``module.py`` from any ``nn.Module``
factory; builders for model libraries are plugins on top of ``module.py``. ``classify.py`` says
what is carried and what is computed locally, ``meta.py`` keeps parameters without memory while
a factory runs, ``stored.py`` finds carried tensors in a checkpoint, and ``adoption.py`` moves
them into the arena.
"""
