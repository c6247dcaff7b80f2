//! Keys of encrypted databases, and `stemma encrypt`, `decrypt` and `rekey`.

use std::io::IsTerminal as _;

use super::{Session, refuse_url};
use crate::arguments::{Command, Decrypt, Encrypt, KeyArguments, Rekey};
use crate::database::{self, KeySource};
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::shell;

/// Has databases opened with the key that is given as an argument or in the environment, if one is.
pub(crate) fn use_key(arguments: &KeyArguments, command: &Command) -> Result<()> {
    let is_new = matches!(command, Command::Encrypt(_));
    let source = if let Some(path) = &arguments.key_file {
        Some(KeySource::File(path.clone()))
    } else if arguments.passphrase {
        Some(KeySource::Passphrase(passphrase("STEMMA_PASSPHRASE", "passphrase: ", is_new)?))
    } else if let Some(path) = variable("STEMMA_KEY_FILE") {
        Some(KeySource::File(path))
    } else if variable("STEMMA_KEY").is_some() {
        Some(KeySource::Variable("STEMMA_KEY".to_owned()))
    } else {
        variable("STEMMA_PASSPHRASE").map(KeySource::Passphrase)
    };
    source.map_or(Ok(()), database::use_key)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The passphrase in a variable of the environment, or one that is typed; a new one is typed twice.
fn passphrase(name: &str, prompt: &str, is_new: bool) -> Result<String> {
    if let Some(passphrase) = variable(name) {
        return Ok(passphrase);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("a passphrase can be typed on a terminal only")
            .with_hint(format!("set ${name}, or use a key file")));
    }
    let typed = shell::read_secret(prompt)?;
    if is_new && shell::read_secret("again: ")? != typed {
        return Err(Failure::usage("the two passphrases differ"));
    }
    Ok(typed)
}

/// Encrypts a database.
pub(super) fn encrypt(encrypt: &Encrypt, session: Session<'_>) -> Result<()> {
    refuse_url(&encrypt.database)?;
    refuse_in_shell(session, "encrypt")?;
    database::encrypt(&encrypt.database, &Progress::for_steps("encrypt"))
}

/// Decrypts a database.
pub(super) fn decrypt(decrypt: &Decrypt, session: Session<'_>) -> Result<()> {
    refuse_url(&decrypt.database)?;
    refuse_in_shell(session, "decrypt")?;
    database::decrypt(&decrypt.database, &Progress::for_steps("decrypt"))
}

/// Replaces the key of a database.
pub(super) fn rekey(rekey: &Rekey, session: Session<'_>) -> Result<()> {
    let new = match &rekey.new_key_file {
        Some(path) => Some(KeySource::File(path.to_string_lossy().into_owned())),
        None if rekey.new_passphrase => {
            Some(KeySource::Passphrase(passphrase("STEMMA_NEW_PASSPHRASE", "new passphrase: ", true)?))
        }
        None if rekey.full => None,
        None => {
            return Err(Failure::usage("a new key is needed")
                .with_hint("give one with --new-key-file FILE or --new-passphrase, or encrypt again with --full"));
        }
    };
    session.with(&rekey.database, |db| {
        if let Some(new) = new {
            db.rekey(new)?;
        }
        if rekey.full { db.reencrypt(&Progress::for_steps("encrypt")) } else { Ok(()) }
    })
}

fn refuse_in_shell(session: Session<'_>, name: &str) -> Result<()> {
    match session.open {
        Some(_) => Err(Failure::usage("the shell has the database open")
            .with_hint(format!("leave the shell, then `stemma {name}`"))),
        None => Ok(()),
    }
}
