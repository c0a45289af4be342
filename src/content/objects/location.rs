//! Where the objects of a volume are, as people write it: `s3://BUCKET/PREFIX` or `file:///DIRECTORY`. Owns that no
//! credentials get in, since the text is recorded in the volume, and how the store behind it is opened.
//!
//! Credentials come from the environment as `object_store` documents it for S3 (`AWS_ACCESS_KEY_ID`,
//! `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, roles of the machine), and so do `AWS_REGION` and `AWS_ENDPOINT_URL`,
//! which are preferred to what the URL says.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Once};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::content::error::ContentError;

/// One attempt at a request; then it is tried again, for as long as there is patience.
const ATTEMPT: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The place of objects. What it shows has no credentials, because it cannot have any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    service: Service,
    /// Without a slash at either end; may be empty.
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Service {
    S3 { bucket: String, endpoint: Option<String>, region: Option<String> },
    Directory(PathBuf),
}

const FORMS: &str = "the forms are s3://BUCKET/PREFIX[?endpoint=URL&region=NAME] and file:///DIRECTORY";

impl FromStr for Location {
    type Err = ContentError;

    fn from_str(text: &str) -> Result<Self, ContentError> {
        let wrong = |shown: &str, cause: &str| ContentError::Location(format!("{shown}: {cause}; {FORMS}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong(text, "no URL of an object store"));
        };
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        if path.split('/').next().is_some_and(|host| host.contains('@')) {
            // It is not shown: it may have a secret in it.
            let cause = "credentials do not belong into the URL, which is recorded in the volume: set \
                         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            return Err(wrong(&format!("{scheme}://..."), cause));
        }
        match (scheme, path.split_once('/').unwrap_or((path, ""))) {
            ("file", ("", directory)) if query.is_none() && !directory.trim_matches('/').is_empty() => {
                let directory = PathBuf::from(format!("/{}", directory.trim_matches('/')));
                Ok(Self { service: Service::Directory(directory), prefix: String::new() })
            }
            ("s3", (bucket, prefix)) if !bucket.is_empty() => {
                let (mut endpoint, mut region) = (None, None);
                for part in query.into_iter().flat_map(|query| query.split('&')) {
                    match part.split_once('=') {
                        Some(("endpoint", url)) if url.contains("://") && !url.contains('@') => {
                            endpoint = Some(url.to_owned());
                        }
                        Some(("region", name)) if !name.is_empty() => region = Some(name.to_owned()),
                        _ => {
                            return Err(wrong(
                                &format!("s3://{path}?..."),
                                "an unknown setting behind the `?`",
                            ));
                        }
                    }
                }
                let prefix = prefix.trim_matches('/');
                if Path::parse(prefix).is_err() {
                    return Err(wrong(text, "no prefix of names"));
                }
                let service = Service::S3 { bucket: bucket.to_owned(), endpoint, region };
                Ok(Self { service, prefix: prefix.to_owned() })
            }
            _ => Err(wrong(text, "no URL of an object store")),
        }
    }
}

/// As it was written.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.service {
            Service::Directory(directory) => write!(f, "file://{}", directory.display()),
            Service::S3 { bucket, endpoint, region } => {
                let slash = if self.prefix.is_empty() { "" } else { "/" };
                write!(f, "s3://{bucket}{slash}{}", self.prefix)?;
                let settings = [("endpoint", endpoint), ("region", region)];
                let given = settings.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
                given.enumerate().try_for_each(|(at, (name, value))| {
                    write!(f, "{}{name}={value}", if at == 0 { '?' } else { '&' })
                })
            }
        }
    }
}

impl Location {
    /// The place of one volume's objects below this.
    pub(super) fn root(&self, volume: &str) -> Path {
        Path::from_iter(self.prefix.split('/').filter(|part| !part.is_empty()).chain([volume]))
    }

    /// The store behind it, which tries a request again for as long as there is `patience`. Asks nobody. With `make`, a
    /// directory that is absent is made.
    pub(super) fn open(&self, patience: Duration, make: bool) -> Result<Arc<dyn ObjectStore>, ContentError> {
        let wrong = |cause: &dyn fmt::Display| ContentError::Location(format!("{self}: {cause}"));
        match &self.service {
            Service::Directory(directory) => {
                if make {
                    std::fs::create_dir_all(directory).map_err(|error| wrong(&error))?;
                }
                let absent = |error| wrong(&format!("{error}; the directory must be there on each host"));
                let opened = LocalFileSystem::new_with_prefix(directory).map_err(absent)?;
                Ok(Arc::new(opened.with_fsync(true)))
            }
            Service::S3 { bucket, endpoint, region } => {
                provide_tls();
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let given = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
                if let (Some(endpoint), None) = (endpoint, given(&builder, AmazonS3ConfigKey::Endpoint)) {
                    builder = builder.with_endpoint(endpoint);
                }
                if let (Some(region), None) = (region, given(&builder, AmazonS3ConfigKey::Region)) {
                    builder = builder.with_region(region);
                }
                let plain =
                    given(&builder, AmazonS3ConfigKey::Endpoint).is_some_and(|url| url.starts_with("http:"));
                let client = ClientOptions::new()
                    .with_allow_http(plain)
                    .with_timeout(ATTEMPT.min(patience))
                    .with_connect_timeout(CONNECT.min(patience));
                let retry = RetryConfig {
                    backoff: BackoffConfig { init_backoff: PAUSE_FIRST, max_backoff: PAUSE_MAX, base: 2.0 },
                    max_retries: usize::MAX,
                    retry_timeout: patience,
                };
                let built = builder.with_client_options(client).with_retry(retry).build();
                Ok(Arc::new(built.map_err(|error| wrong(&error))?))
            }
        }
    }
}

/// The HTTP client takes the process's TLS, and there is to be only one in the program.
fn provide_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else's choice is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_shown() {
        for text in [
            "s3://bucket",
            "s3://bucket/some/prefix",
            "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=eu-west-1",
            "file:///srv/objects",
        ] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
        let location: Location = "s3://bucket/a/b/".parse().unwrap();
        assert_eq!(location.root("id").to_string(), "a/b/id");
        assert_eq!("file:///srv/".parse::<Location>().unwrap().root("id").to_string(), "id");
    }

    #[test]
    fn what_is_no_place_is_refused_and_no_secret_is_shown() {
        for text in [
            "bucket",
            "s3://",
            "s3:///p",
            "file://host/dir",
            "file:///",
            "gs://bucket",
            "s3://b?x=y",
            "s3://b/a//c",
        ] {
            assert!(matches!(text.parse::<Location>(), Err(ContentError::Location(_))), "{text}");
        }
        for text in ["s3://ada:s3cret@bucket/p", "s3://b/p?endpoint=http://ada:s3cret@h"] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
