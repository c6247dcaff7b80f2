//! What is a document?
