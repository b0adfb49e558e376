"""The composition root: a retinue as a program holds it in its hand."""
