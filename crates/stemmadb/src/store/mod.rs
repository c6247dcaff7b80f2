//! Where is everything?
