//! Values as parameters of statements: the four types that the tables have, and lists of three of these.

use std::error::Error;
use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

/// A parameter. Numbers are signed 64 bits wide whatever they are in a document; see `rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Arc<[u8]>),
    Texts(Vec<String>),
    Ints(Vec<i64>),
    ManyBytes(Vec<Arc<[u8]>>),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(number.cast_signed())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl ToSql for Value {
    /// A value that does not fit the column is refused here, before anything of its statement is sent.
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(number) if *ty == Type::INT8 => number.to_sql(ty, out),
            Self::Text(text) if *ty == Type::TEXT => text.to_sql(ty, out),
            Self::Text(text) if *ty == Type::JSONB => {
                out.extend_from_slice(&[1]); // The version of the binary form.
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            Self::Bytes(bytes) if *ty == Type::BYTEA => (&**bytes).to_sql(ty, out),
            Self::Texts(texts) if *ty == Type::TEXT_ARRAY => texts.to_sql(ty, out),
            Self::Ints(numbers) if *ty == Type::INT8_ARRAY => numbers.to_sql(ty, out),
            Self::ManyBytes(many) if *ty == Type::BYTEA_ARRAY => {
                many.iter().map(|bytes| &**bytes).collect::<Vec<_>>().to_sql(ty, out)
            }
            other => Err(format!("{other:?} is no {ty}").into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::JSONB, Type::BYTEA].contains(ty)
            || [Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::BYTEA_ARRAY].contains(ty)
    }

    fn encode_format(&self, _ty: &Type) -> Format {
        Format::Binary
    }

    to_sql_checked!();
}
