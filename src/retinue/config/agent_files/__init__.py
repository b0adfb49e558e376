"""Agent files of other programs: read folders of them as agents of the settings."""

__all__ = ["agent_file", "folders", "toml_output", "translation"]
