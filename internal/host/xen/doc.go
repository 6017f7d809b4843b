// Package xen reads Xen hosts: at present the output of `xl info -n`.
package xen
