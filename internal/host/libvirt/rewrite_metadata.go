package libvirt

// metadata stores the intent, next to other tools' metadata.
func (w *writer) metadata(intent Metadata) error {
	text, err := metadataText(intent)
	if err != nil {
		return err
	}
	t := tag{
		name:  metadataPrefix + ":" + metadataName,
		attrs: []pair{{"xmlns:" + metadataPrefix, MetadataURI}},
		text:  text,
	}
	if m := w.root.child("metadata"); m != nil {
		w.setChildren(m, isOurMetadata, []tag{t})
		return nil
	}
	w.insertBehind(tag{name: "metadata", children: []tag{t}}, "description", "title", "genid", "uuid", "name")
	return nil
}

// insertBehind puts a new element behind the first existing one of the named
// siblings, else before all others.
func (w *writer) insertBehind(t tag, siblings ...string) {
	for _, name := range siblings {
		if all := w.root.all(name); len(all) > 0 {
			w.insertAfter(all[len(all)-1], t)
			return
		}
	}
	w.replace(w.root.open, w.root.open, t.render(w.childLead(w.root)))
}
