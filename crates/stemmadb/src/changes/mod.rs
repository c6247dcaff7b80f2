//! What happened since?
