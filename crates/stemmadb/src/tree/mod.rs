//! What has been reduced from the log?
