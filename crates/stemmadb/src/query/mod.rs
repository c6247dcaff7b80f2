//! What was asked?
