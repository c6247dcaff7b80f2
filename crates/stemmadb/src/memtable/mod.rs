//! What is not reduced yet?
