//! What was written, in order? The log is the truth.
