"""Curation: whether fewer and better episodes make better policies, by trainers of ours and of other projects."""
