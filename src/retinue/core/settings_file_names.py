"""Names of settings files; where they are looked for is a matter of `config/discovery.py`."""

SETTINGS_FILES = ("retinue.toml", "retinue.yaml", "retinue.yml")
