"""Promises of shared context, the companion of the `spec` dialect."""

from __future__ import annotations

from tests.dialects.promise import Promise

PROMISES = (
    # sessions and participants
    Promise("SC-1-ISOLATED", "SC.1", "Sessions see nothing of each other."),
    Promise("SC-1-EQUAL", "SC.1", "All participants of a session may read, overwrite and delete all of its entries."),
    Promise("SC-1-AD-HOC", "SC.1", "Keys need not be announced."),
    Promise("SC-1-VERSION", "SC.1", "The version of an entry starts at 1 and grows by 1 with each write."),
    # actions
    Promise("SC-2-SCHEMA", "SC.2", "The tool has the parameters action, key and value, and only action is required."),
    Promise(
        "SC-2-LIST", "SC.2", "`list_keys` gives key, written_by, written_at, version and size of each, never values."
    ),
    Promise("SC-2-TOTAL", "SC.2", "`list_keys` gives the total size in `total_size_tokens`."),
    Promise("SC-2-READ", "SC.2", "`read` gives key, value, written_by, written_at, version and value_size_tokens."),
    Promise("SC-2-WRITE", "SC.2", "`write` gives key, version, written_by and written_at."),
    Promise("SC-2-WARNING", "SC.2", "`write` adds a `warning` from 800 tokens on."),
    Promise("SC-2-DELETE", "SC.2", "`delete` gives `deleted` and `previous_version`."),
    Promise("SC-2-RESTART", "SC.2", "A key that was deleted and is written again starts at version 1."),
    Promise("SC-2-SIGNED", "SC.2", "`written_by` is the caller's own identity, whatever the caller writes there."),
    Promise("SC-2-TIMES", "SC.2", "Times are UTC, RFC 3339, with `Z`."),
    # limits
    Promise("SC-3-VALUE", "SC.3", "A value above 1000 tokens is VALUE_TOO_LARGE."),
    Promise("SC-3-STORE", "SC.3", "A write that would bring all values above 10,000 tokens is STORE_FULL."),
    Promise("SC-3-OVERWRITE", "SC.3", "An overwritten value does not count toward the total."),
    Promise("SC-3-KEY", "SC.3", "A key with other characters than [a-z0-9_], or not of 1 to 64, is INVALID_KEY."),
    Promise("SC-3-TOKENS", "SC.3", "A value has a quarter as many tokens as characters, rounded down, at least one."),
    Promise("SC-3-WRITE-ORDER", "SC.3", "`write` checks fields, session, key format, value size, then the total."),
    Promise("SC-3-READ-ORDER", "SC.3", "`read` checks fields, session, key format, then existence."),
    Promise("SC-3-DELETE-ORDER", "SC.3", "`delete` checks fields, session, key format, then existence."),
    # time
    Promise(
        "SC-4-LAST-WINS", "SC.4", "Of several writes to a key the last one stays; none is refused for coming second."
    ),
    Promise("SC-4-DURABLE", "SC.4", "Entries survive the end of a subagent, of a run and of the process."),
    Promise(
        "SC-4-KEYED", "SC.4", "A write or delete that is entered again after a crash happens once and answers the same."
    ),
    # errors
    Promise("SC-5-SHAPE", "SC.5", "Every error is a JSON object with `error`, a code, and `message`, a sentence."),
    Promise(
        "SC-5-KEY-NOT-FOUND", "SC.5", "Reading or deleting a missing key is KEY_NOT_FOUND, never an empty success."
    ),
    Promise("SC-5-SESSION-NOT-FOUND", "SC.5", "Any action in a session that does not exist is SESSION_NOT_FOUND."),
    Promise("SC-5-SESSION-ARCHIVED", "SC.5", "Writing or deleting in an archived session is SESSION_ARCHIVED."),
    Promise("SC-5-INVALID-ACTION", "SC.5", "An action that is missing, no string or unknown is INVALID_ACTION."),
    Promise(
        "SC-5-INVALID-REQUEST",
        "SC.5",
        "A field that is missing or mistyped is INVALID_REQUEST, before all other checks.",
    ),
    Promise("SC-5-NEVER-RAISES", "SC.5", "Whatever a model writes as arguments is answered, never raised."),
    # the life of a session
    Promise("SC-6-CREATE", "SC.6", "A new session is empty; creating one that exists is refused."),
    Promise("SC-6-ARCHIVE", "SC.6", "An archived session can still be read and listed."),
    Promise("SC-6-ARCHIVE-RUN", "SC.6", "A run that is started in an archived session reads it and changes nothing."),
    Promise("SC-6-DELETE", "SC.6", "A deleted session is gone with its entries; one of the same name starts empty."),
    Promise("SC-6-LIST", "SC.6", "Sessions are listed with session_id, archived, key_count and total_size_tokens."),
    # people
    Promise("SC-7-IDENTITY", "SC.7", "Participants are `orchestrator` and `subagent:{agent}:{task_id}`."),
    Promise("SC-8-NAMESPACE", "SC.8", "The system text of every participant lists the conventional keys."),
    Promise("SC-8-WRITING", "SC.8", "The system text of every participant says what to write and what not."),
    Promise("SC-8-READING", "SC.8", "The system text of every participant says to list keys first."),
    Promise("SC-9-LOG", "SC.9", "Writes and deletes are logged with session, key, written_by, time, size and version."),
    Promise("SC-9-NO-VALUES", "SC.9", "Values are not logged."),
    # extensions
    Promise("SC-10-OFF", "SC.10", "What is switched off is INVALID_ACTION or INVALID_REQUEST, and not in the schema."),
    Promise("SC-10-NO-PREFIXES", "SC.10", "A key with a colon stays INVALID_KEY."),
    Promise("SC-10-BATCH", "SC.10", "`read_batch` gives `entries`, as `read` does, and the `missing` keys."),
    Promise("SC-10-BATCH-REFUSED", "SC.10", "A key that is malformed or may not be read refuses the whole batch."),
    Promise("SC-10-HISTORY", "SC.10", "`read_history` gives version, value, written_by and written_at, oldest first."),
    Promise("SC-10-HISTORY-SOME", "SC.10", "With `versions` only those of them that are kept are given."),
    Promise("SC-10-HISTORY-KEPT", "SC.10", "The last 10 versions of an entry are kept, as long as it exists."),
    Promise("SC-10-SNAPSHOT", "SC.10", "`snapshot` keeps all entries under a label and answers `snapshot` and `keys`."),
    Promise("SC-10-SNAPSHOT-LABEL", "SC.10", "A label has 1 to 64 printable characters; one that is used is replaced."),
    Promise("SC-10-SNAPSHOT-MOST", "SC.10", "An eleventh snapshot is STORE_FULL."),
    Promise("SC-10-SNAPSHOT-SHOWN", "SC.10", "An operator can take snapshots and see what they hold."),
    Promise("SC-10-TTL", "SC.10", "An entry written with `ttl_seconds` says when it expires, in `expires_at`."),
    Promise("SC-10-TTL-ABSENT", "SC.10", "An entry that has expired is absent from everything, its size included."),
    Promise("SC-10-TTL-WRITE", "SC.10", "Each write sets the time anew: without `ttl_seconds` an entry stays."),
    Promise("SC-10-ACCESS-READ", "SC.10", "Who does not match `readable_by` gets ACCESS_DENIED instead of the value."),
    Promise("SC-10-ACCESS-WRITE", "SC.10", "Who does not match `writable_by` can neither overwrite nor delete."),
    Promise("SC-10-ACCESS-LIST", "SC.10", "`list_keys` shows every key to all participants."),
    Promise("SC-10-ACCESS-STAYS", "SC.10", "A write that does not say who may read or write leaves that as it was."),
    Promise("SC-10-TOLD", "SC.10", "The system text of every participant explains the extensions that are on."),
    Promise("SC-9-INSPECT", "SC.9", "An administrator can see everything in a session."),
)
"""Shared context's promises."""
