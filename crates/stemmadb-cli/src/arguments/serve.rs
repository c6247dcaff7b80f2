//! What may be written after `stemma serve`? Its settings are those of the server's table.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use stemmadb_server::settings::{Kind, Setting, settings};

/// The arguments of `stemma serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n\n  \
    stemma serve databases\n  \
    STEMMA_ADMIN_PASSWORD=secret stemma serve databases --listen 0.0.0.0:5984\n  \
    stemma serve databases --config server.toml --print-config\n\n\
    The directory holds databases (NAME.stemma, or those made over HTTP); each belongs to the server as long as it runs. Without \
    a password for the administrator one is made up and printed, and only this machine is listened to.\n\n\
    Each setting is a flag, a variable (--listen is STEMMA_LISTEN) and a key of a TOML file; a flag counts before a variable, and \
    that before the file. Lists have commas between their values.")]
pub(crate) struct Serve {
    /// The directory of the databases, made if there is none
    pub(crate) directory: PathBuf,
    /// A file of settings, instead of DIRECTORY/stemma.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print what is set and from where, as such a file without secrets, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten)]
    pub(crate) settings: SettingArguments,
}

/// The flags of settings: names of settings, with the values given.
#[derive(Debug, Default)]
pub(crate) struct SettingArguments(pub(crate) Vec<(String, Vec<String>)>);

impl Args for SettingArguments {
    fn augment_args(command: Command) -> Command {
        command.args(settings().iter().filter_map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut arguments = SettingArguments::default();
        arguments.update_from_arg_matches(matches)?;
        Ok(arguments)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings().iter().filter(|setting| setting.flag().is_some()) {
            if let Some(values) = matches.get_many::<String>(setting.name) {
                self.0.push((setting.name.to_owned(), values.cloned().collect()));
            }
        }
        Ok(())
    }
}

/// The flag of a setting. The short help has those of no section only.
fn argument(setting: &Setting) -> Option<Arg> {
    let flag = setting.flag()?;
    let default = Some(setting.default_told()).filter(|told| !told.is_empty());
    let default = default.map(|told| format!(" [default: {told}]")).unwrap_or_default();
    let argument = Arg::new(setting.name)
        .long(flag)
        .value_name(setting.kind.placeholder())
        .help(format!("{}{default}", setting.help))
        .hide_short_help(setting.name.contains('.'));
    Some(match setting.kind {
        Kind::Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        kind if kind.is_list() => argument.action(ArgAction::Append),
        _ => argument,
    })
}

#[cfg(test)]
mod tests {
    use stemmadb_server::settings::FILE;

    use super::*;

    #[test]
    fn the_file_that_help_names_is_the_one_that_is_read() {
        let help = Serve::augment_args(Command::new("serve")).render_long_help().to_string();
        assert!(help.contains(&format!("DIRECTORY/{FILE}")), "{help}");
    }
}
