//! Which terms does a document have, and which documents have a term?
