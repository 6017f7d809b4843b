// Package check says whether a placement is legal on a host: whether what it
// promises can be had, given what everybody else holds, and whether it is
// what its spec asked for. It trusts nobody: it reckons from the inventory by
// itself, with simpler and slower arithmetic than package place, so that
// neither repeats the other's mistakes.
package check
