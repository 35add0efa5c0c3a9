//! Logs of old formats, as they were written. They open for ever.
