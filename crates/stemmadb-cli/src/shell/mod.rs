//! A prompt at which the same verbs are typed, without the database's name.

pub(crate) mod words;
