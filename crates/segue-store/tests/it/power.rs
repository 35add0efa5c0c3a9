//! Power failures.
