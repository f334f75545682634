//! Where a server of this machine listens.
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where to listen: nowhere but on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Parses it (`--listen`).
pub fn parse(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("give the socket's path behind unix:".into())
        } else {
            Ok(Listen::Unix(path.into()))
        };
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Listen::Tcp(address)),
        Ok(address) => Err(format!(
            "{} can be reached from outside; give a loopback address (127.0.0.1:PORT, [::1]:PORT) or unix:PATH",
            address.ip()
        )),
        Err(_) => Err("give unix:PATH, 127.0.0.1:PORT or [::1]:PORT".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_this_machine_is_listened_on() {
        for good in ["127.0.0.1:9100", "127.8.9.1:0", "[::1]:9100"] {
            assert!(matches!(parse(good), Ok(Listen::Tcp(_))), "{good}");
        }
        assert_eq!(parse("unix:/run/m"), Ok(Listen::Unix("/run/m".into())));
        for bad in [
            "0.0.0.0:9100",
            "[::]:9100",
            "192.168.1.1:9100",
            "[::ffff:127.0.0.1]:9100",
            "localhost:9100",
            "127.0.0.1",
            ":9100",
            "unix:",
            "",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
