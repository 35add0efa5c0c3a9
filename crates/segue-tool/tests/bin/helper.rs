//! Processes that the integration tests start.

#[path = "../it/host.rs"]
mod host;

use std::path::PathBuf;
use std::sync::Arc;

use segue_tool::{BuiltinOptions, Registry, Scope, ToolContext, builtin_tools, sandbox};
use tokio_util::sync::CancellationToken;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let mode = arguments.next().expect("a mode");
    if mode == sandbox::SUBCOMMAND {
        eprintln!("{}", sandbox::restrict_and_exec(arguments));
        std::process::exit(126);
    }
    assert_eq!(mode, "call", "unknown mode");
    let arguments: Vec<String> = arguments.map(|argument| argument.into_string().unwrap()).collect();
    let [calls, cwd, session, call, tool, input] = arguments.as_slice() else {
        panic!("call CALLS CWD SESSION CALL TOOL INPUT")
    };
    let context = ToolContext {
        session: session.parse().unwrap(),
        call_id: call.parse().unwrap(),
        scope: Scope { cwd: PathBuf::from(cwd), extra: Vec::new(), calls: PathBuf::from(calls) },
        permitted: true,
        expect: None,
        cancel: CancellationToken::new(),
        host: Arc::new(host::TestHost::default()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let output = runtime.block_on(async {
        let tools = Registry::new(builtin_tools(BuiltinOptions::default()));
        tools.get(tool).unwrap().run(input.parse().unwrap(), &context).await
    });
    println!("{output:?}");
}
