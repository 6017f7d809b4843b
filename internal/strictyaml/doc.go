// Package strictyaml reads the files that people write: specs, policies,
// measured matrices and shapes, in YAML or JSON. A file is obeyed as a whole or
// not at all: every error is reported with its line, column and field, up to
// ten of them at once.
//
// The fields of a document are those of a Go struct, by their json tags. These
// are errors:
//
//   - a field that does not exist; the message names the nearest one that does
//   - a field that is given twice
//   - a value of another kind than the field's, and a word that the field's
//     type (Worded) does not have
//   - a second document, an alias (*name) and more bytes than allowed: a file
//     of a few lines cannot become a large value
//
// A type that implements encoding.TextUnmarshaler gets a value as it is written
// in the file. It does not see whether the value is quoted.
package strictyaml
