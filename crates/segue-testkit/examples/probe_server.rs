//! temporary
use segue_testkit::*;
fn main() {
    let server = ModelServer::start_blocking();
    server.lenient();
    println!("{}", server.url());
    let log = std::env::args().nth(1).unwrap();
    let log2 = log.clone();
    server.respond_with(move |r| {
        use std::io::Write;
        writeln!(
            std::fs::OpenOptions::new().create(true).append(true).open(&log2).unwrap(),
            "{}",
            serde_json::json!({"path":r.path,"body":r.body})
        )
        .unwrap();
        let t = r.body.to_string();
        let last = t.rfind("count slowly");
        if last.is_some() && last > t.rfind("then stop") {
            return Some(
                Reply::text((1..60).map(|n| format!("w{n} ")).collect::<String>())
                    .pace(std::time::Duration::from_millis(250)),
            );
        }
        None
    });
    loop {
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}
