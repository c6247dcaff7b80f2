//! The public face: a database that is opened, written, read and followed.
