// Package xen reads Xen hosts: for now what `xl info -n` says about them.
package xen
