//! The generated part of `docs/command-line.md`.

use clap::{Arg, ArgAction, Command};

#[test]
fn the_document_says_what_the_code_does() {
    let mut text = String::new();
    describe(&super::command(), "segue", &[], &mut text);
    crate::docs_check::check("command-line.md", &text);
}

fn describe(command: &Command, name: &str, inherited: &[String], text: &mut String) {
    text.push_str(&format!("## {name}\n\n"));
    if let Some(about) = command.get_about() {
        text.push_str(&format!("{}\n\n", sentence(&about.to_string())));
    }
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !inherited.contains(&arg.get_id().to_string()))
        .filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpLong | ArgAction::Version))
        .collect();
    if !shown.is_empty() {
        text.push_str("| | |\n|---|---|\n");
        for arg in &shown {
            text.push_str(&format!("| {} | {} |\n", spelled(arg), meaning(arg)));
        }
        text.push('\n');
    }
    let global = |arg: &Arg| arg.is_global_set().then(|| arg.get_id().to_string());
    let inherited: Vec<String> =
        inherited.iter().cloned().chain(command.get_arguments().filter_map(global)).collect();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        describe(below, &format!("{name} {}", below.get_name()), &inherited, text);
    }
}

fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn spelled(arg: &Arg) -> String {
    let names = [arg.get_short().map(|c| format!("-{c}")), arg.get_long().map(|long| format!("--{long}"))];
    let flags: Vec<String> = names.into_iter().flatten().collect();
    let takes_value = arg.get_action().takes_values();
    let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let value =
        arg.get_value_names().and_then(|names| names.first()).map_or_else(String::new, ToString::to_string);
    match (flags.is_empty(), takes_value, is_optional) {
        (true, ..) => format!("`{value}`"),
        (false, false, _) => format!("`{}`", flags.join(", ")),
        (false, true, true) => format!("`{} [{value}]`", flags.join(", ")),
        (false, true, false) => format!("`{} {value}`", flags.join(", ")),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut text = sentence(&arg.get_help().map(ToString::to_string).unwrap_or_default());
    for value in arg.get_possible_values().iter().filter(|_| arg.get_action().takes_values()) {
        let help = value.get_help().map(|help| format!(" ({})", help.to_string().to_lowercase()));
        let separator = if text.contains(" `") { "," } else { " One of" };
        text.push_str(&format!("{separator} `{}`{}", value.get_name(), help.unwrap_or_default()));
    }
    sentence(&text).replace('|', "\\|")
}
