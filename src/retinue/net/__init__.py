"""How bytes travel: one HTTP session, one reader of event streams."""
