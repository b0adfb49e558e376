"""Names of settings files: one of them, in the folder where retinue is started, is read."""

SETTINGS_FILES = ("retinue.toml", "retinue.yaml", "retinue.yml")
