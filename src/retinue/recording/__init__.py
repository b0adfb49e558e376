"""Recordings of trees: made from stored runs, kept in one readable file, and played in place of models and tools."""

from retinue.recording.file import Recording, read_recording, write_recording
from retinue.recording.playback import playing, record, replay, write_tree
from retinue.recording.player import Player, ReplayDiffers
from retinue.recording.recorder import record_tree
from retinue.recording.trajectories import MadeCall, ReadMessage, Trajectory, trajectory_of

__all__ = [
    "MadeCall",
    "Player",
    "ReadMessage",
    "Recording",
    "ReplayDiffers",
    "Trajectory",
    "playing",
    "read_recording",
    "record",
    "record_tree",
    "replay",
    "trajectory_of",
    "write_recording",
    "write_tree",
]
