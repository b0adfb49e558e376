"""Names of settings files: one of them, in the folder where retinue is started, is read."""

SETTINGS_FILES = ("retinue.toml", "retinue.yaml", "retinue.yml")
REPLACED = ".replaced-while-a-program-ran"
"""Appended to the name of a settings file that was replaced while a program could write it, for a person to check."""
