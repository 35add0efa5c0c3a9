//! A home, a working folder, and the binary run in them with a clean environment.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take before the machine counts as stuck.
const DEADLINE: Duration = Duration::from_secs(60);

/// Folders of one test's own.
pub struct World {
    folder: tempfile::TempDir,
}

/// One run of the binary, to be started.
pub struct Call {
    command: Command,
    stdin: Option<String>,
    stdout: Option<std::fs::File>,
    folder: PathBuf,
}

/// What a run left.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    folder: PathBuf,
}

/// A run that goes on; killed if the test ends before it does.
pub struct Running {
    child: Option<Child>,
    folder: PathBuf,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Writes a file, making its folders.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The binary with arguments, in the working folder.
    pub fn segue(&self, arguments: &[&str]) -> Call {
        self.call(Command::new(env!("CARGO_BIN_EXE_segue")), arguments)
    }

    /// The same where no file can grow beyond so many KiB: writes fail as on a full disk.
    pub fn segue_on_small_disk(&self, kib: u32, arguments: &[&str]) -> Call {
        let mut command = Command::new("bash");
        let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_segue")]);
        self.call(command, arguments)
    }

    /// The same as a user who may not read everybody's processes: where the tests run as root, as nobody.
    pub fn segue_as_anybody(&self, arguments: &[&str]) -> Call {
        use std::os::unix::fs::PermissionsExt;
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            return self.segue(arguments);
        }
        let program = self.path("segue");
        if !program.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_segue"), &program).unwrap();
        }
        for folder in [self.folder.path(), &self.work(), &program] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        self.call(command, arguments)
    }

    fn call(&self, mut command: Command, arguments: &[&str]) -> Call {
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("nobody"))
            .env("SEGUE_HOME", self.home())
            .current_dir(self.work());
        Call { command, stdin: None, stdout: None, folder: self.folder.path().to_owned() }
    }

    /// A turn that must succeed; its JSON object.
    pub fn ask(&self, arguments: &[&str]) -> Value {
        let ran = self.segue(&[&["-p", "--output", "json", "-q"], arguments].concat()).run();
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.json()
    }

    /// A new session that was told a number; its id.
    pub fn session(&self) -> String {
        self.ask(&["remember the number 42"])["session"].as_str().unwrap().to_owned()
    }

    /// The log of a session.
    pub fn log(&self, session: &str) -> PathBuf {
        self.home().join("sessions").join(session).join("log.jsonl")
    }

    /// The records of a session, as `type` and `data`.
    pub fn records(&self, session: &str) -> Vec<(String, Value)> {
        let ran = self.segue(&["sessions", "show", session, "--output", "jsonl"]).run();
        let record = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap();
            (value["type"].as_str().unwrap().to_owned(), value["data"].clone())
        };
        ran.stdout.lines().map(record).collect()
    }
}

impl Call {
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    /// Where stdout goes instead of being kept.
    #[cfg(target_os = "linux")]
    pub fn stdout(mut self, file: std::fs::File) -> Self {
        self.stdout = Some(file);
        self
    }

    pub fn start(mut self) -> Running {
        let stdin = if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        let mut child = self
            .command
            .stdin(stdin)
            .stdout(self.stdout.map_or_else(Stdio::piped, Stdio::from))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(text) = self.stdin {
            // A run that refuses its arguments does not read.
            let _unread = child.stdin.take().unwrap().write_all(text.as_bytes());
        }
        Running { child: Some(child), folder: self.folder }
    }

    pub fn run(self) -> Ran {
        self.start().finish()
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until a file has exactly this content.
    pub fn wait_for(&mut self, path: &Path, content: &str) {
        let deadline = Instant::now() + DEADLINE;
        while std::fs::read_to_string(path).unwrap_or_default() != content {
            assert!(Instant::now() < deadline, "{} never became {content:?}", path.display());
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                panic!("ended before {} became {content:?}", path.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Ran {
        use std::os::unix::process::ExitStatusExt;
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let status = output.status;
        Ran {
            code: status.code().unwrap_or_else(|| -status.signal().unwrap()),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            folder: self.folder.clone(),
        }
    }

    /// Kills it as the kernel would.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        let mut rest = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Ran {
    /// The one object on stdout.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|_| panic!("no JSON: {}{}", self.stdout, self.stderr))
    }

    /// Exit code, stdout and stderr with everything that differs from run to run named.
    pub fn shown(&self) -> String {
        let text = format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr);
        redact(&text, &self.folder)
    }

    /// The command in the line that says how to resume.
    pub fn resume_command(&self) -> String {
        let lines: Vec<&str> =
            self.stderr.lines().filter_map(|line| line.strip_prefix("To resume this session: ")).collect();
        assert_eq!(lines.len(), 1, "once: {}", self.stderr);
        assert!(self.stderr.ends_with(&format!("{}\n", lines[0])), "last: {}", self.stderr);
        lines[0].to_owned()
    }
}

/// Names what differs from run to run.
pub fn redact(text: &str, folder: &Path) -> String {
    let text =
        text.replace(folder.to_str().unwrap(), "[dir]").replace(env!("CARGO_BIN_EXE_segue"), "[segue]");
    let text = replace(&text, "00000000-0000-0000-0000-000000000000", "[session]");
    let text = replace(&text, "2000-00-00T00:00:00.000Z", "[time]");
    let text = replace(&text, "call_0000000000000000", "[call]");
    replace(&text, "prompt_0000000000000000", "[prompt]")
}

/// Replaces whatever looks like `pattern`, in which a digit stands for any hexadecimal digit.
fn replace(text: &str, pattern: &str, name: &str) -> String {
    let fits = |candidate: &str| {
        candidate.len() >= pattern.len()
            && candidate.bytes().zip(pattern.bytes()).all(|(found, wanted)| {
                if wanted.is_ascii_digit() { found.is_ascii_hexdigit() } else { found == wanted }
            })
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if fits(rest) {
            out.push_str(name);
            rest = &rest[pattern.len()..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}
