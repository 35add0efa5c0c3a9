//! A medium that fails: at each operation, once or for good, in the middle of a write, forgetful after a failed sync.
