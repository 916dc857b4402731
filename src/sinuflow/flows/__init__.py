"""Flows: a bijection and a base distribution as one module that is called for a density."""
