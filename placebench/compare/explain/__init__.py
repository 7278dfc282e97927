"""Sentences: the verdict, its reasons, what to mind, what to try next."""
