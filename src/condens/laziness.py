"""Imports of public names when they are first used: one thread at a time."""

from threading import RLock

# Of two threads that wait for each other's imports, Python lets one go on with modules that are
# only half imported. Whoever holds this lock imports alone. No module may ask the package itself
# for a name while it is imported (`from condens import nn`): it would wait for the lock while
# another thread holds the lock and waits for the module.
importing = RLock()
