//! Where processes are made to die: each in a world of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use futures::{StreamExt, stream};
use segue_store::ReadLog;
use segue_testkit::ModelServer;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::child::{Act, Asks, ORDER, Order, Sign, signs_file};
use super::judge::{GoOn, judge};

/// How many processes live at once.
const AT_ONCE: usize = 3;

/// What is done, and how.
#[derive(Clone)]
pub struct Script {
    /// What is done.
    pub act: Act,
    /// Under the checkpoint policy `turn`.
    pub by_turn: bool,
    /// Who answers permission questions.
    pub asks: Asks,
    /// In Anthropic's wire format, else OpenAI's.
    pub anthropic: bool,
    /// The world that it begins with; none is an empty one.
    pub base: Option<Arc<TempDir>>,
}

impl Script {
    /// One prompt, with everything permitted.
    pub fn prompt(text: &str) -> Self {
        Self::of(Act::Prompt(vec![text.to_owned()]))
    }

    /// Something done in an empty world.
    pub fn of(act: Act) -> Self {
        Self { act, by_turn: false, asks: Asks::No, anthropic: true, base: None }
    }

    /// An order to do it in a world of its own.
    pub fn order(&self, world: &TempDir, server: &ModelServer, at: Option<Sign>) -> Order {
        // The folder's name is the same in all worlds, so that signs are.
        let root = world.path().join("world");
        match &self.base {
            None => std::fs::create_dir(&root).unwrap(),
            Some(base) => copy(&base.path().join("world"), &root),
        }
        Order {
            root,
            url: server.url(),
            anthropic: self.anthropic,
            act: self.act.clone(),
            by_turn: self.by_turn,
            asks: self.asks,
            at,
        }
    }

    /// Every sign that it gives, and its writes torn in half.
    pub async fn signs(&self) -> Vec<Sign> {
        let world = TempDir::new().unwrap();
        let server = ModelServer::start().await;
        let order = self.order(&world, &server, None);
        let status = start(&order).wait().await.unwrap();
        assert!(status.success(), "{}", said(&order));
        let text = std::fs::read_to_string(signs_file(&order.root)).unwrap();
        let mut given: HashMap<&str, usize> = HashMap::new();
        let mut signs = Vec::new();
        for step in text.lines() {
            let nth = given.entry(step).or_default();
            *nth += 1;
            signs.push(Sign::new(step, *nth));
            if step.starts_with("before write log.jsonl ") {
                signs.push(Sign::new(&step.replacen("before", "within", 1), *nth));
            }
        }
        signs
    }

    /// The world that is left when it is killed at a sign.
    pub async fn killed_at(&self, sign: Sign) -> TempDir {
        let world = TempDir::new().unwrap();
        let server = ModelServer::start().await;
        let order = self.order(&world, &server, Some(sign));
        let status = start(&order).wait().await.unwrap();
        assert!(was_killed(status), "{status}: {}", said(&order));
        world
    }

    /// The world that is left when it is killed as soon as `seen` is true of its log and the server.
    pub async fn killed_when(
        &self,
        server: &ModelServer,
        seen: impl Fn(&ReadLog, &ModelServer) -> bool,
    ) -> (TempDir, Order) {
        let world = TempDir::new().unwrap();
        let order = self.order(&world, server, None);
        let mut child = start(&order);
        let place = order.place();
        loop {
            if let Some(id) = place.only_session().await
                && seen(&place.log(id).await, server)
            {
                break;
            }
            assert_eq!(child.try_wait().unwrap(), None, "it lives on: {}", said(&order));
            // Nothing but a look now and then: what is waited for is what is seen.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        child.kill().await.unwrap();
        // Its signs are those of a life that was cut off, and nobody's business.
        std::fs::remove_file(signs_file(&order.root)).unwrap();
        (world, order)
    }

    /// The same, and judges what is left.
    pub async fn killed_once(
        &self,
        server: ModelServer,
        go_on: GoOn,
        seen: impl Fn(&ReadLog, &ModelServer) -> bool,
    ) {
        let (_world, order) = self.killed_when(&server, seen).await;
        judge(&order, &server, go_on).await;
    }

    /// Kills it at each of `signs`, each in a world of its own, and judges what is left: in both wire formats, and with
    /// both ways to go on.
    pub async fn sweep(&self, signs: Vec<Sign>) {
        stream::iter(signs.into_iter().enumerate())
            .map(|(index, sign)| {
                let mut script = self.clone();
                // Every second pair speaks the other wire format, also where a session began in the first.
                script.anthropic ^= index / 2 % 2 == 1;
                let go_on = if index % 2 == 0 { GoOn::Finish } else { GoOn::Prompt };
                tokio::spawn(async move { script.dies_at(sign, go_on).await })
            })
            .buffer_unordered(AT_ONCE)
            .for_each(|result| async { result.unwrap() })
            .await;
    }

    async fn dies_at(&self, sign: Sign, go_on: GoOn) {
        let world = TempDir::new().unwrap();
        let server = ModelServer::start().await;
        let order = self.order(&world, &server, Some(sign.clone()));
        let status = start(&order).wait().await.unwrap();
        assert!(was_killed(status), "at {sign}: {status}\n{}", said(&order));
        let judged = tokio::spawn(async move { judge(&order, &server, go_on).await }).await;
        if let Err(error) = judged {
            panic!("killed at {sign}, then {go_on:?}: {error}; what is left: {}", world.keep().display());
        }
    }

    /// Kills it at every step from the first `from` on. `among` must be among the steps: a matrix that misses them
    /// proves less than it says.
    pub async fn killed_at_every_step(&self, from: &str, among: &[&str]) {
        let mut signs = self.signs().await;
        let begin = signs.iter().position(|sign| sign.step == from).expect("a step of the script");
        signs.drain(..begin);
        for step in among {
            assert!(signs.iter().any(|sign| sign.step == *step), "{step} is not among {signs:#?}");
        }
        self.sweep(signs).await;
    }
}

/// Starts a process that follows an order, to its end or its death.
pub fn start(order: &Order) -> Child {
    let said = std::fs::File::create(said_file(order)).unwrap();
    // The link leads to this very program, also after it was built anew.
    let link = Path::new("/proc/self/exe");
    let program = if link.exists() { link.to_owned() } else { std::env::current_exe().unwrap() };
    Command::new(program)
        .args(["--exact", "crash::child::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ORDER, serde_json::to_string(order).unwrap())
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn said_file(order: &Order) -> PathBuf {
    order.root.join("said")
}

fn said(order: &Order) -> String {
    std::fs::read_to_string(said_file(order)).unwrap_or_default()
}

/// True if a process died by SIGKILL.
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(9)
}

/// Copies a folder.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
