//! The literal rule that a person is offered for a command.

use segue_log::literal_rule;

/// Programs whose second word says what they do, so that two words make a rule.
const WITH_SUBCOMMANDS: &str = "apt brew bun cargo deno dotnet gh git go gradle just make mvn npm pip pip3 \
    pnpm poetry rustup uv yarn";

/// Programs that only look, whatever their arguments.
const LOOKING: &str = "basename cat cmp cut df diff dirname du echo grep head id ls nl pwd readlink realpath sha256sum \
    stat tail tr uname wc which whoami";

fn named(programs: &str, program: &str) -> bool {
    programs.split(' ').any(|one| one == program)
}

/// True if a command is more than plain words: it has several commands, redirections, substitutions, quotes or
/// patterns, so that a rule about its first words would say little about what it does.
fn has_shell_syntax(command: &str) -> bool {
    !command.chars().all(|c| c.is_alphanumeric() || " _-./:=@%+,".contains(c)) || assigns(command)
}

/// True for `NAME=value command`.
fn assigns(command: &str) -> bool {
    command.split(' ').find(|word| !word.is_empty()).is_some_and(|word| word.contains('='))
}

/// `bash(cargo test *)` for a plain command whose first words say what it does; else the very command.
pub(super) fn rule(command: &str) -> String {
    let command = command.trim();
    let exact = || literal_rule("bash", command);
    if has_shell_syntax(command) {
        return exact();
    }
    let mut words = command.split_ascii_whitespace();
    let (Some(program), second) = (words.next(), words.next()) else { return exact() };
    let plain =
        |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.contains(['.', '/', '=']);
    match second {
        Some(second) if named(WITH_SUBCOMMANDS, program) && plain(second) => {
            format!("bash({program} {second} *)")
        }
        _ if named(LOOKING, program) => format!("bash({program} *)"),
        _ => exact(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_covers_no_more_than_its_words_say() {
        for (command, expected) in [
            ("cargo test --all", "bash(cargo test *)"),
            ("cargo --version", "bash(cargo --version)"),
            ("ls -la src", "bash(ls *)"),
            ("rm *.o", r"bash(rm \*.o)"),
            ("rm -rf build", "bash(rm -rf build)"),
            ("python3 run.py", "bash(python3 run.py)"),
            // It sets variables, PATH too.
            ("printf -v PATH x", "bash(printf -v PATH x)"),
            ("cargo test; rm x", "bash(cargo test; rm x)"),
            ("cargo test && rm x", "bash(cargo test && rm x)"),
            ("cat a > b", "bash(cat a > b)"),
            ("ls $(rm x)", "bash(ls $(rm x))"),
            ("ls\nrm x", "bash(ls\nrm x)"),
            ("rm *.o", r"bash(rm \*.o)"),
            ("rm *.o", r"bash(rm \*.o)"),
            (r"sed s/a\.b/c/ x?", r"bash(sed s/a\\.b/c/ x\?)"),
            ("PAGER=evil git log", "bash(PAGER=evil git log)"),
            ("  git status ", "bash(git status *)"),
        ] {
            assert_eq!(rule(command), expected, "{command}");
        }
    }
}
