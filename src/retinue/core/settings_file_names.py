"""Names of settings files; where they are looked for is a matter of `config/settings.py`."""

SETTINGS_FILES = ("retinue.toml", "retinue.yaml", "retinue.yml")
