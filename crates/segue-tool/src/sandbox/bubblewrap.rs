//! The command line of bubblewrap.

use std::ffi::OsString;
use std::path::Path;

/// Places with sockets of services that would do outside what the sandbox forbids inside.
const SERVICES: &[&str] =
    &["/run/user", "/run/dbus", "/run/docker.sock", "/run/containerd", "/run/podman", "/tmp/.X11-unix"];

pub(super) fn wrap(writable: &[&Path], command: Vec<OsString>) -> Vec<OsString> {
    let mut line: Vec<OsString> = [
        "bwrap",
        "--unshare-user",
        "--unshare-net",
        "--unshare-pid",
        "--unshare-ipc",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    .map(OsString::from)
    .into();
    for service in SERVICES.iter().map(Path::new) {
        if service.is_dir() {
            line.extend(["--tmpfs".into(), service.into()]);
        } else if service.exists() {
            line.extend(["--ro-bind".into(), "/dev/null".into(), service.into()]);
        }
    }
    for folder in writable {
        line.extend(["--bind".into(), folder.into(), folder.into()]);
    }
    line.push("--".into());
    line.extend(command);
    line
}
