//! Which version wins?
